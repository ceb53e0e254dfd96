#include "pipeline/verify/rank_state_look.hpp"

#include "core/base/capture.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {

RankStateLook look_at_rank_states(std::filesystem::path const& path, Checkpoint const& checkpoint,
                                  Comm const& comm) {
  RankStateLook look;
  if (checkpoint.storage != Storage::shares || !checkpoint.state.inventory.optimizer) return look;
  OpenChoice choice;
  choice.rank_states = true;
  look.fault = capture([&] {
    Checkpoint opened = open_source(path, FormatId::automatic, choice, comm);
    if (opened.state.rank_states != nullptr) look.opened = std::move(opened);
  });
  if (look.fault && look.fault->kind() != ErrorKind::source) throw *look.fault;
  return look;
}

}  // namespace reshard
