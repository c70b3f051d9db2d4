"""The page that maps the measured sizes and their speed."""
