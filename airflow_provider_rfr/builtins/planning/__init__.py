"""The plan of a deploy: pure functions of the declared, the recorded and the actual state."""
