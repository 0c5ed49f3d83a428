"""The device's half of a federated round, and the words everyone shares.

Nothing is imported here, so that `ondevice.contract.wire` or `ondevice.client.samplers` never pull in torch.
"""
