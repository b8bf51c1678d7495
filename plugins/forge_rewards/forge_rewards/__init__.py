"""Rewards judged under a deadline, in processes that can be killed."""
