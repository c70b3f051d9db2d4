"""HTML pages of tables, pictures, facts and notes, which reports and the explorer share."""
