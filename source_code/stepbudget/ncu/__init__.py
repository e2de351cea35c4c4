"""What did Nsight Compute count, kernel by kernel?"""
