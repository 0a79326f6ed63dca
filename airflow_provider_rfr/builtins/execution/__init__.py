"""A plan done: what is there is observed, steps are journalled and done once, the registry is written at the end."""
