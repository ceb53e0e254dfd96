#include "core/transport/shared_sight.hpp"

#include <charconv>

namespace reshard {
namespace {

/// The first byte of each message of rank 0.
enum class Word : char { answer = 'a', error = 'e', end = '.' };

}  // namespace

std::string SharedSight::look_for_all(std::string_view question,
                                      std::function<std::string()> const& look) const {
  std::string answer;
  auto const error = capture([&] {
    SightScope const itself(nullptr);  // one answer, however many accesses it takes
    answer = look();
  });
  std::string message(1, static_cast<char>(error ? Word::error : Word::answer));
  message += fmt::format("{} {}", question.size(), question);
  message +=
      error ? fmt::format("{} {}", static_cast<int>(error->kind()), error->sentence()) : answer;
  comm_.broadcast(std::move(message), 0);
  if (error) throw *error;
  return answer;
}

void SharedSight::lose(std::string_view question, std::string_view other) {
  lost_ = Error(
      ErrorKind::usage,
      fmt::format(
          "rank {} checks '{}' where rank 0 checks '{}': their jobs differ. Start all ranks with "
          "the same program and command.",
          comm_.rank(), question, other));
  throw *lost_;
}

std::string SharedSight::hear(std::string_view question) {
  if (lost_) throw *lost_;
  std::string message = comm_.broadcast({}, 0);
  RESHARD_EXPECT(!message.empty());
  auto const word = static_cast<Word>(message.front());
  over_ = word == Word::end;
  if (over_) lose(question, "nothing more");
  std::size_t size = 0;
  auto const [after, problem] =
      std::from_chars(message.data() + 1, message.data() + message.size(), size);
  RESHARD_EXPECT(problem == std::errc());
  std::size_t const begin = static_cast<std::size_t>(after - message.data()) + 1;
  RESHARD_EXPECT(begin <= message.size() && size <= message.size() - begin);
  if (message.compare(begin, size, question) != 0) lose(question, message.substr(begin, size));
  message.erase(0, begin + size);
  if (word == Word::answer) return message;
  int kind = 0;
  auto const [space, bad] = std::from_chars(message.data(), message.data() + message.size(), kind);
  RESHARD_EXPECT(bad == std::errc());
  throw Error(static_cast<ErrorKind>(kind),
              message.substr(static_cast<std::size_t>(space - message.data()) + 1));
}

std::string SharedSight::see(std::string_view question, std::function<std::string()> const& look) {
  return comm_.rank() == 0 ? look_for_all(question, look) : hear(question);
}

void SharedSight::end() {
  if (comm_.rank() == 0) comm_.broadcast(std::string(1, static_cast<char>(Word::end)), 0);
  while (comm_.rank() != 0 && !over_)
    over_ = comm_.broadcast({}, 0).front() == static_cast<char>(Word::end);
}

void together_seeing(Comm const& comm, std::function<void()> const& work) {
  if (comm.size() == 1) return together(comm, work);
  SharedSight sight(comm);
  auto const mine = capture([&] {
    SightScope const scope(&sight);
    work();
  });
  sight.end();
  together(comm, [&] {
    if (sight.lost()) throw *sight.lost();
    if (mine) throw *mine;
  });
}

}  // namespace reshard
