"""Of Keras, which Debian does not have: what the pages' examples use."""


class Sequential:
    def __init__(self, layers):
        self.layers = layers

    def build(self, input_shape):
        for layer in self.layers:
            layer.build(input_shape)

    def get_layer(self, name):
        return next(layer for layer in self.layers if layer.name == name)
