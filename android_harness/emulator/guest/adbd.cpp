// The device side of adb for the emulated phone, and its process number 1.
//
// Debian has no adbd, and Android's cannot be built outside Android; this one speaks as much of the protocol as
// a measuring harness needs (shell, sync) and refuses the rest.  Being process 1 it cannot be chosen by the
// out-of-memory killer, and it adopts and reaps whatever a killed command leaves behind.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>

#include "connection.h"

int main() {
  constexpr std::uint16_t kPort = 5555;
  signal(SIGCHLD, SIG_IGN);  // children and orphans are reaped by the kernel
  signal(SIGPIPE, SIG_IGN);  // a peer that leaves is an ordinary end, seen in the return value of write
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  address.sin_addr.s_addr = htonl(INADDR_ANY);  // of the guest, whose only network is one port forwarded by the host
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, 8) != 0) {
    std::perror("adbd: listen on port 5555");
    return 1;
  }
  std::puts("adbd: ready");  // the host waits for this line on the serial console
  std::fflush(stdout);
  for (;;) {
    int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (fork() == 0) {
      close(listener);
      guest::serve_connection(client);
    }
    close(client);
  }
}
