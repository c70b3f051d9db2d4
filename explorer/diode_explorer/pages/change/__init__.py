"""The page that compares the times of two environments or devices."""
