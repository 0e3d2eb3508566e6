"""Proofs of rewritten steps, from graphs alone: no planner and no rewriter is asked."""
