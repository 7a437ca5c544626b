"""Differential privacy: mechanisms and noise, accounting, ledgers and claims, clients' budgets, owners' policies.

Mechanisms: mechanism, feature_sums, dpsgd, dpfedavg, with clipping and noise. Cost: accounting. What a run claims:
claims, run_ledger, ledger, statement, warm_start; checked_ledger verifies it. What owners allow: budget, policy.
"""
