"""What a new user does in the first hour: types or runs something, and reads what comes."""
