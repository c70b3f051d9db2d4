"""The process of a sweep that uses torch and the device: it lists, compiles and times."""
