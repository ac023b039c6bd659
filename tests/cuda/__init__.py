"""What holds on a CUDA GPU; and what can be shown of it without one."""
