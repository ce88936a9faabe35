"""Programs that train real models with Jorge and with the usual optimizers."""
