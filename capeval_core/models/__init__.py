"""What every network here has in common: opened once, checked, in a precision, on a device, in batches."""
