"""Networks, their gradients and Adam in float64 numpy: what learners compute, worked out without torch."""

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]  # (inputs, outputs) and (outputs,) of each layer
Parameters = dict[str, np.ndarray]


def linear_layers(parameters: Parameters, prefix: str) -> Layers:
    """The layers of `prefix` as torch.nn.Linear stores them, turned round."""
    return [
        (parameters[f"{prefix}.layers.{i}.weight"].T, parameters[f"{prefix}.layers.{i}.bias"])
        for i in range(_depth(parameters, prefix))
    ]


def member_layers(parameters: Parameters, prefix: str, member: int) -> Layers:
    """The layers of one member of an ensemble."""
    return [
        (parameters[f"{prefix}.layers.{i}.weight"][member], parameters[f"{prefix}.layers.{i}.bias"][member, 0])
        for i in range(_depth(parameters, prefix))
    ]


def _depth(parameters: Parameters, prefix: str) -> int:
    return sum(name.startswith(f"{prefix}.layers.") and name.endswith(".bias") for name in parameters)


def forward(layers: Layers, x: np.ndarray, masks=None) -> tuple[np.ndarray, list]:
    """Outputs of a ReLU perceptron, and the inputs and pre-activations of its layers."""
    tape = []
    for i, (weight, bias) in enumerate(layers):
        z = x @ weight + bias
        tape.append((x, z))
        if i == len(layers) - 1:
            return z, tape
        x = np.maximum(z, 0)
        if masks is not None:
            x = x * masks[i]
    raise AssertionError("no layers")


def backward(layers: Layers, tape: list, gradient: np.ndarray, masks=None) -> Layers:
    """Gradients of (weight, bias) of each layer for the gradient of the outputs."""
    out = []
    for i in reversed(range(len(layers))):
        x, z = tape[i]
        if i < len(layers) - 1:
            if masks is not None:
                gradient = gradient * masks[i]
            gradient = gradient * (z > 0)
        out.append((x.T @ gradient, gradient.sum(0)))
        gradient = gradient @ layers[i][0].T
    return out[::-1]


def name_linear(prefix: str, gradients: Layers) -> Parameters:
    named = {}
    for i, (weight, bias) in enumerate(gradients):
        named[f"{prefix}.layers.{i}.weight"], named[f"{prefix}.layers.{i}.bias"] = weight.T, bias
    return named


def name_members(prefix: str, gradients: list[Layers]) -> Parameters:
    named = {}
    for i in range(len(gradients[0])):
        named[f"{prefix}.layers.{i}.weight"] = np.stack([member[i][0] for member in gradients])
        named[f"{prefix}.layers.{i}.bias"] = np.stack([member[i][1][None] for member in gradients])
    return named


class Adam:
    """Kingma and Ba 2015, algorithm 1."""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.moments: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}

    def step(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        for name, g in gradients.items():
            t, m, v = self.moments.get(name, (0, np.zeros_like(g), np.zeros_like(g)))
            t, m, v = t + 1, self.beta1 * m + (1 - self.beta1) * g, self.beta2 * v + (1 - self.beta2) * g * g
            self.moments[name] = t, m, v
            m_hat, v_hat = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
            parameters[name] = parameters[name] - rate * m_hat / (np.sqrt(v_hat) + self.epsilon)


def gaussian(mean: np.ndarray, log_std: np.ndarray, actions: np.ndarray):
    """log-density (B,), its gradient by the mean (B, A), and by the log-std (B, A)."""
    z = (actions - mean) / np.exp(log_std)
    log_prob = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1)
    return log_prob, z / np.exp(log_std), z**2 - 1


def categorical(logits: np.ndarray, choice: np.ndarray):
    """log-probability (B,) and its gradient by the logits (B, N)."""
    shifted = logits - logits.max(1, keepdims=True)
    probabilities = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    one_hot = np.eye(logits.shape[1])[choice]
    return np.log((probabilities * one_hot).sum(1)), one_hot - probabilities


def policy_gradients(parameters: Parameters, observations, actions, weights, *, discrete: bool, masks=None):
    """Loss −Σ w · log π(a|s) and its gradients, for a softmax or a Gaussian with a tanh mean."""
    layers = linear_layers(parameters, "policy.network")
    out, tape = forward(layers, observations, masks)
    if discrete:
        log_prob, by_logits = categorical(out, actions)
        gradients = name_linear("policy.network", backward(layers, tape, -weights[:, None] * by_logits, masks))
    else:
        mean, log_std = np.tanh(out), parameters["policy.log_std"]
        log_prob, by_mean, by_log_std = gaussian(mean, log_std, actions)
        by_out = -weights[:, None] * by_mean * (1 - mean**2)
        gradients = name_linear("policy.network", backward(layers, tape, by_out, masks))
        gradients["policy.log_std"] = -(weights[:, None] * by_log_std).sum(0)
    return -(weights * log_prob).sum(), gradients


def central_differences(loss, parameters: Parameters, names, step: float = 1e-6) -> Parameters:
    """Gradients of loss(parameters), one entry at a time."""
    out = {}
    for name in names:
        gradient = np.zeros_like(parameters[name])
        for index in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                moved = parameters[name].copy()
                moved[index] += sign * step
                values.append(loss({**parameters, name: moved}))
            gradient[index] = (values[0] - values[1]) / (2 * step)
        out[name] = gradient
    return out
