"""What a trigger block may say, and what is wrong with it."""
