"""Where does every nanosecond of a training step go? A reader of Nsight Systems' reports."""
