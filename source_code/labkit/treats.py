"""Which lab treats what the report reader advises? The reader is handed this; it knows nothing of labs itself."""

LABS = {  # fix (of stepbudget.ask.predict.FIXES) → lab
    "loader": "02_pytorch_mnist",
    "pinned_memory": "03_data_transfer",
    "no_synchronisation": "03_data_transfer",
    "mixed_precision": "04_tensor_cores",
    "cuda_graph": "07_launch_overhead",
}
