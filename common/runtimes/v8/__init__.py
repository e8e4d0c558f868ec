"""V8: isolates, their handles and handle scopes."""
