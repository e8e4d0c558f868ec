"""Read V8's isolates, their handles and handle scopes."""
