#include "pipeline/extract/channel.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "core/base/tables/integers.hpp"
#include "core/base/threads/activity.hpp"

namespace reshard {
namespace {

constexpr std::size_t length_bytes = 4;

template <class Call>
ssize_t uninterrupted(Call const& call) {
  ssize_t done = 0;
  do done = call();
  while (done < 0 && errno == EINTR);
  return done;
}

}  // namespace

Descriptor::~Descriptor() { ::close(number_); }

Channel::Channel(int descriptor) : descriptor_(descriptor) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
    fail(ErrorKind::usage,
         "--serve: standard input is no stream socket. It is for reshard.open() of the Python "
         "module; use `reshard extract PATH PATTERN -o FILE`.");
}

bool Channel::fill(std::string& into) const {
  Waiting const waiting;  // as long as the other process likes
  for (std::size_t done = 0; done < into.size();) {
    ssize_t const got = uninterrupted(
        [&] { return ::recv(descriptor_, into.data() + done, into.size() - done, 0); });
    if (got <= 0 && done == 0) return false;
    if (got <= 0)
      fail(ErrorKind::usage, "a request was cut short: {} of {} bytes came. Start another reader.",
           done, into.size());
    done += static_cast<std::size_t>(got);
  }
  return true;
}

std::optional<Json> Channel::next() const {
  std::string length(length_bytes, '\0');
  if (!fill(length)) return std::nullopt;
  std::uint32_t bytes = 0;
  for (std::size_t i = length_bytes; i-- > 0;)
    bytes = bytes << 8U | static_cast<unsigned char>(length[i]);
  if (bytes > most_request_bytes)
    fail(ErrorKind::usage, "a request of {} bytes: it may have at most {}. Name fewer tensors.",
         bytes, most_request_bytes);
  std::string text(bytes, '\0');
  if (bytes > 0 && !fill(text))
    fail(ErrorKind::usage, "a request was cut short: {} of {} bytes came. Start another reader.", 0,
         bytes);
  return parse_json(text, "a request");
}

bool Channel::answer(Json const& document, int descriptor) const {
  std::string const text = document.dump();
  auto const bytes = narrow<std::uint32_t>(text.size());
  std::string message;
  for (std::size_t i = 0; i < length_bytes; ++i)
    message.push_back(static_cast<char>(bytes >> 8U * i & 0xffU));
  message += text;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  for (std::size_t done = 0; done < message.size();) {
    iovec part{message.data() + done, message.size() - done};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (descriptor >= 0 && done == 0) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    Waiting const waiting;
    ssize_t const sent =
        uninterrupted([&] { return ::sendmsg(descriptor_, &header, MSG_NOSIGNAL); });
    if (sent <= 0) return false;
    done += static_cast<std::size_t>(sent);
  }
  return true;
}

}  // namespace reshard
