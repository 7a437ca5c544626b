"""Differential privacy: mechanisms and noise, accounting, ledgers and claims, clients' budgets, owners' policies.

Mechanisms: mechanism, feature_sums, dpsgd, dpfedavg, with clipping and noise. Cost: accounting. What a run claims:
claims, ledger, statement, warm_start, and experiment/run_ledger; checked_ledger verifies it. What owners allow: budget,
policy.
"""
