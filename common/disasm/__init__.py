"""Machine code decoded by capstone, which need not be there: `capstone_loader` gives it, or says how to get it."""
