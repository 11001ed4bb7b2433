"""The paper's tables and figures: one small config each, ours beside the published numbers."""
