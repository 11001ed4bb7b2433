"""Neural models in plain torch (extra `neural`): MultVAE, LightGCN, XSimGCL."""
