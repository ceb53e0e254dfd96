#include "core/formats/deepspeed/held_parts.hpp"

#include <algorithm>
#include <span>

#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/formats/deepspeed/flat_parts.hpp"

namespace reshard::deepspeed {
namespace {

class Holder {
 public:
  Holder(Folder const& folder, Headers const& headers, FilePaths const& files)
      : folder_(folder),
        headers_(headers),
        files_(files),
        first_state_(narrow<std::uint32_t>(folder.model_files.size())) {}

  std::vector<HeldParameter> run() {
    for (auto const& group : model().groups)
      for (NamedShape const& one : group) add_parameter(one);
    if (headers_.settings.weights_alone) return std::move(parameters_);
    if (folder_.universal)
      add_universal();
    else
      add_ranks();
    for (HeldParameter const& parameter : parameters_) check_complete(parameter);
    return std::move(parameters_);
  }

 private:
  ModelStates const& model() const { return headers_.models.front(); }
  std::string file_name(std::uint32_t file) const { return files_[file].string(); }
  std::string place() const { return folder_.folder.string(); }

  void add_parameter(NamedShape const& one) {
    if (!numbers_.emplace(one.name, parameters_.size()).second)
      fail(ErrorKind::source, "{}: 'param_shapes' has '{}' twice. The file is damaged: restore it.",
           file_name(0), one.name);
    Index const elements = checked_volume(one.shape, ErrorKind::source,
                                          fmt::format("{}: '{}'", file_name(0), one.name));
    parameters_.push_back({one.name, one.shape, elements, {}, nullptr, 0});
  }

  HeldParameter& parameter(std::string const& name, std::uint32_t file) {
    auto const found = numbers_.find(name);
    if (found != numbers_.end()) return parameters_[found->second];
    fail(ErrorKind::source,
         "{}: holds state of '{}', which 'param_shapes' of {} lacks. The files are of two saves: "
         "restore those of one.",
         file_name(file), name, file_name(0));
  }

  // --- files of ranks -------------------------------------------------------------------------

  void add_ranks() {
    if (headers_.optimizers.empty()) {
      if (folder_.split) refuse_lost(0);
      return;
    }
    auto const ranks = static_cast<Index>(headers_.optimizers.size());
    check_ranks(ranks);
    for (std::size_t g = 0; g < model().groups.size(); ++g)
      by_slices_.push_back(!folder_.split && slices_follow_shapes(g));
    for (Index rank = 0; rank < ranks; ++rank) add_rank(rank, ranks);
  }

  /// Whether the slices of a group are in the order of `param_shapes`, which is that of the
  /// vectors. With round_robin_gradients they are not (DeepSpeed 0.19.8, _link_all_hp_params):
  /// their offsets are those of parameters in the order of the module.
  bool slices_follow_shapes(std::size_t group) const {
    std::vector<std::string_view> sliced;
    for (OptimizerStates const& states : headers_.optimizers) {
      if (!states.groups[group].has_slices) return false;
      for (Slice const& slice : states.groups[group].slices)
        if (sliced.empty() || sliced.back() != slice.name) sliced.push_back(slice.name);
    }
    std::vector<std::string_view> listed;
    for (NamedShape const& one : model().groups[group])
      if (parameters_[numbers_.at(one.name)].elements > 0) listed.push_back(one.name);
    return sliced == listed;
  }

  [[noreturn]] void refuse_lost(Index expected) const {
    fail(ErrorKind::source,
         "{}: has the optimizer states of {}{}. Files of ranks were lost, or come from another "
         "run: restore them, or choose another save.",
         place(), counted(headers_.optimizers.size(), "rank"),
         expected > 0 ? fmt::format(", and its files say that {} shared the parameters",
                                    counted(expected, "rank"))
                      : ", and in stage 3 these files hold the weights");
  }

  void check_ranks(Index ranks) const {
    Index const stated = model().data_parallel;
    if (stated > 0 && stated != ranks) refuse_lost(stated);
    for (OptimizerStates const& one : headers_.optimizers)
      if (one.ranks > 0 && one.ranks != ranks) refuse_lost(one.ranks);
    for (std::size_t r = 1; r < headers_.optimizers.size(); ++r) {
      auto const& first = headers_.optimizers.front();
      auto const& other = headers_.optimizers[r];
      bool same = first.groups.size() == other.groups.size();
      for (std::size_t g = 0; same && g < first.groups.size(); ++g)
        same = first.groups[g].steps == other.groups[g].steps;
      if (!same)
        fail(
            ErrorKind::source,
            "{}: has other parameter groups, or another step, than {}. The files are of two saves: "
            "restore those of one.",
            file_name(first_state_ + narrow<std::uint32_t>(r)), file_name(first_state_));
    }
    if (headers_.optimizers.front().groups.size() != model().groups.size())
      fail(ErrorKind::source,
           "{}: has {} groups of parameters, and 'param_shapes' of {} has {}. The files are of two "
           "saves: restore those of one.",
           file_name(first_state_), headers_.optimizers.front().groups.size(), file_name(0),
           model().groups.size());
  }

  void add_rank(Index rank, Index ranks) {
    OptimizerStates const& states = headers_.optimizers[static_cast<std::size_t>(rank)];
    std::uint32_t const file = first_state_ + narrow<std::uint32_t>(rank);
    for (std::size_t g = 0; g < states.groups.size(); ++g) {
      StateGroup const& group = states.groups[g];
      if (by_slices_[g]) {
        for (Slice const& slice : group.slices) {
          Index& done = done_[slice.name];
          add_part(parameter(slice.name, file), group, file,
                   {0, done, done + slice.elements, slice.at});
          done += slice.elements;
        }
      } else {
        std::vector<Index> elements;
        for (NamedShape const& one : model().groups[g])
          elements.push_back(parameters_[numbers_.at(one.name)].elements);
        auto const parts =
            folder_.split ? split_parts(elements, ranks) : joined_parts(elements, ranks);
        for (FlatPart const& part : parts[static_cast<std::size_t>(rank)])
          add_part(parameter(model().groups[g][part.parameter].name, file), group, file, part);
      }
      if (rank == 0 && !group.step.empty())
        for (NamedShape const& one : model().groups[g]) {
          HeldParameter& of = parameters_[numbers_.at(one.name)];
          of.step = &group.step.front();
          of.step_file = file;
        }
    }
  }

  void add_part(HeldParameter& to, StateGroup const& group, std::uint32_t file,
                FlatPart const& part) {
    if (part.begin == part.end) return;
    for (FileTensor const& vector : group.slots) {
      Index const held = vector.shape.size() == 1 ? vector.shape.front() : -1;
      if (held < 0 || !vector.strides.empty() || part.at > held ||
          part.end - part.begin > held - part.at || part.end > to.elements)
        fail(
            ErrorKind::source,
            "{}: '{}' of '{}' would be elements [{}, {}) of a vector of {}, and elements [{}, {}) of "
            "the parameter's {}. The files are of another world size, or damaged: restore those of "
            "one save.",
            file_name(file), vector.name, to.name, part.at, part.at + part.end - part.begin, held,
            part.begin, part.end, to.elements);
      to.slots[vector.name].push_back({file, &vector, part.begin, part.end, part.at});
    }
  }

  // --- universal checkpoints ------------------------------------------------------------------

  void add_universal() {
    std::size_t next = 0;
    for (Folder::Parameter const& one : folder_.parameters) {
      HeldParameter* to = nullptr;
      for (std::size_t f = 0; f < one.files.size(); ++f, ++next) {
        if (is_stand_in(one.name, std::filesystem::path(one.files[f]).stem().string())) continue;
        std::uint32_t const file = first_state_ + narrow<std::uint32_t>(next);
        StateGroup const& group = headers_.optimizers[next].groups.front();
        if (to == nullptr) to = universal_parameter(one, group, file);
        if (to == nullptr) continue;
        if (!group.step.empty()) {
          to->step = &group.step.front();
          to->step_file = file;
        }
        for (FileTensor const& slot : group.slots) add_whole(*to, slot, file);
      }
    }
    take_steps_of_settings();
  }

  bool is_stand_in(std::string_view parameter, std::string_view slot) const {
    return std::ranges::binary_search(headers_.settings.stand_ins,
                                      fmt::format("{}/{}", parameter, slot));
  }

  /// Stage 3: takes the steps of groups for parameters without a step of their own.
  void take_steps_of_settings() {
    std::vector<StateGroup> const& groups = headers_.settings.groups;
    for (std::size_t g = 0; g < groups.size() && g < model().groups.size(); ++g)
      for (NamedShape const& one : model().groups[g]) {
        HeldParameter& of = parameters_[numbers_.at(one.name)];
        if (of.step != nullptr || groups[g].step.empty() || of.slots.empty()) continue;
        if (is_stand_in(one.name, "step")) continue;
        of.step = &groups[g].step.front();
        of.step_file = first_state_ + narrow<std::uint32_t>(headers_.optimizers.size());
      }
  }

  /// Vocabularies lose their padding, so the shape is the file's unless it is flat.
  HeldParameter* universal_parameter(Folder::Parameter const& one, StateGroup const& group,
                                     std::uint32_t file) {
    if (group.slots.empty()) return nullptr;
    FileTensor const& slot = group.slots.front();
    if (!numbers_.contains(one.name)) {
      if (folder_.split) (void)parameter(one.name, file);  // whose vectors are flat
      add_parameter({one.name, slot.shape});
    }
    HeldParameter& found = parameters_[numbers_.at(one.name)];
    if (slot.shape != found.shape && slot.shape.size() == found.shape.size()) {
      found.shape = slot.shape;
      found.elements = checked_volume(slot.shape, ErrorKind::source, file_name(file));
    }
    return &found;
  }

  /// Moments that the source did not have are repeated elements (universal.hpp).
  void add_whole(HeldParameter& to, FileTensor const& slot, std::uint32_t file) {
    if (!slot.strides.empty() && std::ranges::count(slot.strides, 0) == std::ssize(slot.strides))
      return;
    bool const flat = slot.shape.size() == 1 && to.shape.size() != 1;
    Index const held = checked_volume(slot.shape, ErrorKind::source, file_name(file));
    if ((flat ? held != to.elements : slot.shape != to.shape) || !slot.strides.empty())
      fail(
          ErrorKind::source,
          "{}: has the shape ({}), and '{}' has ({}). The files are of two saves, or damaged: repeat "
          "the conversion to a universal checkpoint.",
          file_name(file), fmt::join(slot.shape, ", "), to.name, fmt::join(to.shape, ", "));
    if (held > 0) to.slots[slot.name].push_back({file, &slot, 0, held, 0});
  }

  /// Parts are in order, so they are complete if they are contiguous.
  void check_complete(HeldParameter const& parameter) const {
    if (headers_.optimizers.empty()) return;
    auto const masters = parameter.slots.find(std::string(master_word));
    if (masters == parameter.slots.end() && parameter.elements > 0)
      fail(
          ErrorKind::source,
          "{}: no file holds the FP32 weight of '{}'. Files of ranks were lost, or come from another "
          "save: restore them.",
          place(), parameter.name);
    for (auto const& [slot, parts] : parameter.slots) {
      Index end = 0;
      for (HeldPart const& part : parts) {
        if (part.begin != end) break;
        end = part.end;
      }
      if (end != parameter.elements)
        fail(
            ErrorKind::source,
            "{}: the files hold {} of {} elements of '{}' ({}). Files of ranks were lost, or come from "
            "another world size: restore those of one save.",
            place(), end, parameter.elements, parameter.name, slot);
    }
  }

  Folder const& folder_;
  Headers const& headers_;
  FilePaths const& files_;
  std::uint32_t first_state_;
  std::vector<HeldParameter> parameters_;
  std::map<std::string, std::size_t> numbers_;
  std::vector<bool> by_slices_;        ///< by group: the files contain the places of its parameters
  std::map<std::string, Index> done_;  ///< elements of each parameter on lower ranks
};

}  // namespace

std::vector<HeldParameter> held_parameters(Folder const& folder, Headers const& headers,
                                           FilePaths const& files) {
  return Holder(folder, headers, files).run();
}

}  // namespace reshard::deepspeed
