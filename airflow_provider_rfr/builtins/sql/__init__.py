"""What a query reads and gives, told from its text."""
