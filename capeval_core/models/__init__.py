"""The frame of every network: opened once, checked, in a precision, on a device, in batches."""
