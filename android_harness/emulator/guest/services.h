// The services an adb client may open.  Each one runs in a process of its own and talks to the client through
// one descriptor: `connection` does the multiplexing, so a service is plain sequential code that may block.
#pragma once

#include <string>

namespace guest {

// Runs one shell command.  `service` is what the client asked for, e.g. "shell,v2,raw:ls /data".
// v2 keeps stdout and stderr apart, carries stdin and its end, and returns the exit code; a pty on request.
[[noreturn]] void serve_shell(int client, const std::string& service);

// File transfer: STAT, LIST, SEND, RECV and the second version of stat that the client asks for.
[[noreturn]] void serve_sync(int client);

}  // namespace guest
