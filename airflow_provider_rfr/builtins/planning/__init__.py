"""What a deploy would do: pure functions of what is declared, recorded and there."""
