"""What did each rung bring, and what does it cost?"""
