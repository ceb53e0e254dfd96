#include "tests/support/program_run.hpp"

#include <cstdio>
#include <memory>

#include <unistd.h>

#include "core/base/error.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/cli/command_line.hpp"
#include "pipeline/commands/all_commands.hpp"

namespace reshard::test {
namespace {

/// Standard output in a file, until the end of its scope.
class OutputInFile {
 public:
  OutputInFile() : file_(std::tmpfile(), &std::fclose), usual_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    ::dup2(::fileno(file_.get()), STDOUT_FILENO);
  }
  ~OutputInFile() { restore(); }
  OutputInFile(OutputInFile const&) = delete;
  OutputInFile& operator=(OutputInFile const&) = delete;

  std::string text() {
    restore();
    std::string result;
    std::rewind(file_.get());
    for (int c = std::fgetc(file_.get()); c != EOF; c = std::fgetc(file_.get()))
      result += static_cast<char>(c);
    return result;
  }

 private:
  void restore() {
    if (usual_ < 0) return;
    std::fflush(stdout);
    ::dup2(usual_, STDOUT_FILENO);
    ::close(usual_);
    usual_ = -1;
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int usual_;
};

}  // namespace

Said run_words(std::vector<std::string> const& words) {
  Commands const commands = all_commands();
  std::vector<char const*> argv{"reshard"};
  for (std::string const& word : words) argv.push_back(word.c_str());
  CommandLine const line = parse_command_line(static_cast<int>(argv.size()), argv.data(), commands);
  if (line.command == nullptr) return {line.code, line.text, ""};
  std::atomic<bool> const stop = false;
  MapLibrary const library({std::filesystem::path(RESHARD_SOURCE_DIR) / "configs" / "models"});
  Said said;
  OutputInFile output;
  auto const error = capture([&] {
    said.code = line.command->run({library, &stop}, Comm::world());
  });
  said.out = output.text();
  if (!error) return said;
  said.code = exit_code(error->kind());
  said.error = error->sentence();
  return said;
}

}  // namespace reshard::test
