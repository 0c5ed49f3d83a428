// One adb client on one TCP connection: framing, handshake and the multiplexing of streams.
#pragma once

namespace guest {

// Serves `client` until it disconnects or breaks the protocol, then exits the process.
[[noreturn]] void serve_connection(int client);

}  // namespace guest
