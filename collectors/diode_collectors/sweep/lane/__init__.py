"""The process of a sweep that holds torch and the device: it lists, compiles and times."""
