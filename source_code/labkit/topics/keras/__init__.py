"""What does Keras do with the same network?"""
