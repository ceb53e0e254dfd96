#include <csignal>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/program.hpp"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit shall be an error of write, not the end
  reshard::guard_standard_streams();
  reshard::Commands const commands = reshard::all_commands();
  return reshard::run_program(argc, argv, commands);
}
