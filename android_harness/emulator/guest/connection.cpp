// The adb transport.  A packet is six little-endian words (command, arg0, arg1, payload length, checksum, command
// inverted) and the payload.  CNXN is answered with CNXN and no AUTH, as emulators do: the only way in is a port on
// the host's 127.0.0.1.  Every stream allows one unacknowledged WRTE in each direction, so memory is bounded by
// the number of streams.  One thread, one poll loop, no locks; services are processes behind socket pairs.
#include "connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "services.h"

namespace guest {
namespace {

constexpr std::uint32_t word(const char (&name)[5]) {
  return static_cast<std::uint32_t>(name[0]) | static_cast<std::uint32_t>(name[1]) << 8 |
         static_cast<std::uint32_t>(name[2]) << 16 | static_cast<std::uint32_t>(name[3]) << 24;
}
constexpr std::uint32_t kConnect = word("CNXN"), kOpen = word("OPEN"), kOkay = word("OKAY"), kClose = word("CLSE"),
                        kWrite = word("WRTE");
constexpr std::uint32_t kVersion = 0x01000001;  // the first version in which checksums are not computed
constexpr std::uint32_t kMaxPayload = 256 * 1024;
constexpr char kBanner[] =
    "device::ro.product.name=fedss;ro.product.model=emulated_arm64;ro.product.device=virt;"
    "features=shell_v2,stat_v2,fixed_push_mkdir";

struct Header {
  std::uint32_t command, arg0, arg1, length, checksum, inverted;
};

struct Stream {
  std::uint32_t remote_id;
  int service;              // our end of the socket pair
  bool awaiting_okay;       // the client has not acknowledged our last WRTE yet
  std::string undelivered;  // of the client's last WRTE; acknowledged once the service has taken all of it
};

class Connection {
 public:
  explicit Connection(int client) : client_(client) {}

  void run() {
    for (;;) {
      std::vector<pollfd> events{{client_, static_cast<short>(POLLIN | (outbox_.empty() ? 0 : POLLOUT)), 0}};
      std::vector<std::uint32_t> ids;
      for (auto& [id, stream] : streams_) {
        short wanted = (stream.awaiting_okay ? 0 : POLLIN) | (stream.undelivered.empty() ? 0 : POLLOUT);
        events.push_back({wanted ? stream.service : -1, wanted, 0});
        ids.push_back(id);
      }
      if (poll(events.data(), events.size(), -1) < 0 && errno != EINTR) return;
      if ((events[0].revents & POLLOUT) && !flush()) return;
      if ((events[0].revents & (POLLIN | POLLHUP | POLLERR)) && !receive()) return;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        auto found = streams_.find(ids[i]);
        if (found == streams_.end()) continue;  // closed by a packet of this very turn
        short happened = events[i + 1].revents;
        if (happened & POLLOUT) deliver(found->first, found->second);
        if (happened & (POLLIN | POLLHUP | POLLERR)) collect(found->first, found->second);
      }
    }
  }

 private:
  void send(std::uint32_t command, std::uint32_t arg0, std::uint32_t arg1, const std::string& payload = "") {
    Header header{command, arg0, arg1, static_cast<std::uint32_t>(payload.size()), 0, ~command};
    outbox_.append(reinterpret_cast<const char*>(&header), sizeof header);
    outbox_ += payload;
  }

  bool flush() {
    ssize_t count = write(client_, outbox_.data(), outbox_.size());
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    outbox_.erase(0, static_cast<std::size_t>(count));
    return true;
  }

  // Takes what has arrived and acts on every complete packet.  False: the client left or broke the protocol.
  bool receive() {
    static char chunk[64 * 1024];
    ssize_t count = read(client_, chunk, sizeof chunk);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    inbox_.append(chunk, static_cast<std::size_t>(count));
    std::size_t at = 0;
    while (inbox_.size() - at >= sizeof(Header)) {
      Header header;
      std::memcpy(&header, inbox_.data() + at, sizeof header);
      if (header.inverted != ~header.command || header.length > kMaxPayload) return false;
      if (inbox_.size() - at - sizeof header < header.length) break;
      act(header, inbox_.substr(at + sizeof header, header.length));
      at += sizeof header + header.length;
    }
    inbox_.erase(0, at);
    return true;
  }

  void act(const Header& header, const std::string& payload) {
    if (header.command == kConnect) {
      max_payload_ = std::min(kMaxPayload, header.arg1);
      send(kConnect, kVersion, kMaxPayload, kBanner);
      return;
    }
    if (header.command == kOpen) return open_stream(header.arg0, payload.c_str());  // c_str: up to its NUL
    auto found = streams_.find(header.arg1);
    if (found == streams_.end()) return;  // late words for a stream that we have closed
    if (header.command == kOkay) {
      found->second.awaiting_okay = false;
    } else if (header.command == kWrite) {
      found->second.undelivered += payload;
      deliver(found->first, found->second);
    } else if (header.command == kClose) {
      close(found->second.service);  // the service sees the end of its client
      streams_.erase(found);
    }
  }

  void open_stream(std::uint32_t remote_id, const std::string& service) {
    std::string kind = service.substr(0, service.find_first_of(",:"));
    bool is_shell = (kind == "shell" || kind == "exec") && service.find(':') != std::string::npos;
    int ends[2];
    if ((!is_shell && service != "sync:") || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return send(kClose, 0, remote_id);  // the protocol's refusal
    }
    pid_t pid = fork();
    if (pid == 0) {
      close(client_);
      close(ends[0]);
      for (auto& [id, stream] : streams_) close(stream.service);
      signal(SIGCHLD, SIG_DFL);
      if (is_shell) serve_shell(ends[1], service);
      serve_sync(ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
      close(ends[0]);
      return send(kClose, 0, remote_id);
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    streams_[next_id_] = {remote_id, ends[0], false, ""};
    send(kOkay, next_id_++, remote_id);
  }

  void deliver(std::uint32_t id, Stream& stream) {
    ssize_t count = write(stream.service, stream.undelivered.data(), stream.undelivered.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // A service that reads no more may still have something to say: its input is thrown away, not the stream.
    stream.undelivered.erase(0, count < 0 ? stream.undelivered.size() : static_cast<std::size_t>(count));
    if (stream.undelivered.empty()) send(kOkay, id, stream.remote_id);
  }

  void collect(std::uint32_t id, Stream& stream) {
    static char chunk[kMaxPayload];
    ssize_t count = read(stream.service, chunk, max_payload_);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count > 0) {
      send(kWrite, id, stream.remote_id, std::string(chunk, static_cast<std::size_t>(count)));
      stream.awaiting_okay = true;
      return;
    }
    send(kClose, id, stream.remote_id);
    close(stream.service);
    streams_.erase(id);
  }

  int client_;
  std::uint32_t max_payload_ = 4096;  // until the client says more
  std::uint32_t next_id_ = 1;
  std::string inbox_, outbox_;
  std::map<std::uint32_t, Stream> streams_;
};

}  // namespace

void serve_connection(int client) {
  fcntl(client, F_SETFL, O_NONBLOCK);
  Connection(client).run();
  _exit(0);
}

}  // namespace guest
