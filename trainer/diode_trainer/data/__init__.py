"""Datasets: from the warehouse's views, or from files, to tensors."""
