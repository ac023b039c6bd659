"""What users type, and what they read then: one text file for each command, run again and compared."""
