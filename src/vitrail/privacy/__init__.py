"""Privacy: mechanisms, what they cost, the ledger that says so, clients' budgets, and attacks that check it."""
