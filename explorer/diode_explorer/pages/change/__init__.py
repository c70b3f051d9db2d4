"""What two environments or devices time differently."""
