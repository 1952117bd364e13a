import numpy as np


class Embedding:
    def __init__(self, input_dim, output_dim, name):
        self.shape, self.name, self.weights = (input_dim, output_dim), name, []

    def build(self, _):
        self.weights = [np.zeros(self.shape, np.float32)]

    def get_weights(self):
        return self.weights
