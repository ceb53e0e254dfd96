#include "core/formats/deepspeed/zero_table.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/formats/deepspeed/flat_parts.hpp"
#include "core/formats/deepspeed/run_state.hpp"
#include "core/layout/pieces/flat_boxes.hpp"

namespace reshard::deepspeed {
namespace {

constexpr std::string_view states_prefix = "optimizer.state.";

class Table {
 public:
  Table(Folder const& folder, Headers const& headers, Checkpoint& checkpoint)
      : folder_(folder),
        headers_(headers),
        checkpoint_(checkpoint),
        first_state_(narrow<std::uint32_t>(folder.model_files.size())) {}

  void fill() {
    parameters_ = held_parameters(folder_, headers_, checkpoint_.files);
    for (HeldParameter const& one : parameters_) numbers_.emplace(one.name, numbers_.size());
    add_weights();
    add_states();
    add_records();
    note_run();
  }

 private:
  ModelStates const& model() const { return headers_.models.front(); }
  std::string file_name(std::uint32_t file) const { return checkpoint_.files[file].string(); }
  std::string place() const { return folder_.folder.string(); }

  // --- the tables -----------------------------------------------------------------------------

  void add_weights() {
    std::set<std::string> frozen;
    for (NamedShape const& one : model().frozen) frozen.insert(one.name);
    std::map<std::string, std::string> const shared(model().shared.begin(), model().shared.end());
    std::set<std::string> added;
    for (FileTensor const& tensor : model().module) {
      auto const alias = shared.find(tensor.name);
      std::string const& first = alias == shared.end() ? tensor.name.text() : alias->second;
      auto const number = numbers_.find(first);
      bool const whole =
          number == numbers_.end() || tensor.shape == parameters_[number->second].shape;
      if (folder_.split && frozen.contains(first))
        add_frozen(tensor.name, first);
      else if (whole)
        checkpoint_.stored.add_whole(tensor.name, tensor.dtype, tensor.shape,
                                     {0, tensor.offset_bytes, tensor.size_bytes}, tensor.strides);
      else
        add_rounded(tensor, parameters_[number->second]);
      added.insert(tensor.name);
    }
    // A universal checkpoint of pipelines has model states of some layers only.
    for (HeldParameter const& parameter : parameters_)
      if (!added.contains(parameter.name) && !parameter.slots.empty())
        add_rounded(FileTensor{parameter.name, usual_dtype(), {}, {}, 0, 0}, parameter);
  }

  DType usual_dtype() const {
    return model().module.empty() ? DType::f32 : model().module.front().dtype;
  }

  /// Adds a weight that is stored only as its master: rounded, it is the weight of the training
  /// run.
  void add_rounded(FileTensor const& weight, HeldParameter const& parameter) {
    auto const masters = parameter.slots.find(std::string(master_word));
    if (masters == parameter.slots.end())
      fail(
          ErrorKind::source,
          "{}: '{}' has the shape ({}) and no FP32 weight, where 'param_shapes' says ({}). The file is "
          "damaged: restore it.",
          file_name(0), weight.name, fmt::join(weight.shape, ", "),
          fmt::join(parameter.shape, ", "));
    bool const lower = weight.dtype == DType::bf16 || weight.dtype == DType::f16;
    if (lower) checkpoint_.stored.rounded[checkpoint_.stored.tensors.size()] = weight.dtype;
    add_parts(weight.name, parameter.shape, masters->second);
  }

  void add_frozen(std::string const& name, std::string const& first) {
    auto const shape = std::ranges::find(model().frozen, first, &NamedShape::name)->shape;
    Index const elements = checked_volume(shape, ErrorKind::source, file_name(0));
    std::vector<HeldPart> parts;
    auto const split = split_parts(std::span(&elements, 1), std::ssize(headers_.models));
    for (std::size_t r = 0; r < headers_.models.size(); ++r) {
      auto const& held = headers_.models[r].frozen_parts;
      auto const part =
          std::ranges::find_if(held, [&first](FileTensor const& one) { return one.name == first; });
      for (FlatPart const& flat : split[r]) {
        if (part == held.end() || part->shape.size() != 1 || !part->strides.empty() ||
            part->shape.front() < flat.end - flat.begin)
          fail(
              ErrorKind::source,
              "{}: holds no {} elements of the frozen parameter '{}', of which each of the {} "
              "files of model states that are there holds a part. Files are missing, of another world size, or damaged: restore those of one save.",
              file_name(narrow<std::uint32_t>(r)), flat.end - flat.begin, first,
              headers_.models.size());
        parts.push_back({narrow<std::uint32_t>(r), &*part, flat.begin, flat.end, 0});
      }
    }
    add_parts(name, shape, parts);
  }

  void add_states() {
    for (HeldParameter const& parameter : parameters_) {
      for (auto const& [slot, parts] : parameter.slots)
        add_parts(state_name(parameter.name, slot), parameter.shape, parts);
      if (parameter.step != nullptr)
        checkpoint_.state.scalars.push_back(
            {state_name(parameter.name, "step"),
             parameter.step->dtype,
             {parameter.step_file, parameter.step->offset_bytes, parameter.step->size_bytes}});
    }
  }

  void add_parts(std::string const& name, std::vector<Index> const& shape,
                 std::vector<HeldPart> const& parts) {
    StoredTable& stored = checkpoint_.stored;
    DType const dtype = parts.front().vector->dtype;
    auto const bytes = static_cast<std::uint64_t>(bits(dtype) / 8);
    StoredTensor tensor{name, dtype, shape, narrow<std::uint32_t>(stored.chunks.size()), 0};
    for (HeldPart const& part : parts) {
      if (part.vector->dtype != dtype)
        fail(ErrorKind::source, "{}: '{}' is {} here and {} in {}. Restore the files of one save.",
             file_name(part.file), name, reshard::name(part.vector->dtype), reshard::name(dtype),
             file_name(parts.front().file));
      for (FlatBox const& flat : flat_boxes(shape, part.begin, part.end)) {
        std::vector<Index> sizes;
        Index elements = 1;
        for (std::size_t d = 0; d < shape.size(); ++d) {
          sizes.push_back(flat.box.end[d] - flat.box.begin[d]);
          elements *= sizes.back();
        }
        std::uint64_t const offset =
            part.vector->offset_bytes + static_cast<std::uint64_t>(part.at + flat.offset) * bytes;
        stored.chunks.push_back(
            {stored.lists.add(flat.box.begin),
             stored.lists.add(sizes),
             {part.file, offset, static_cast<std::uint64_t>(elements) * bytes}});
        ++tensor.chunk_count;
      }
    }
    stored.tensors.push_back(std::move(tensor));
  }

  void add_records() {
    auto const add = [&](std::vector<StorageRecord> const& records, std::uint32_t file) {
      for (StorageRecord const& record : records)
        checkpoint_.records.push_back({file, record.offset_bytes, record.size_bytes, 0,
                                       headers_.file_bytes[file], record.crc32});
    };
    for (std::size_t f = 0; f < headers_.models.size(); ++f)
      add(headers_.models[f].records, narrow<std::uint32_t>(f));
    for (std::size_t f = 0; f < headers_.optimizers.size(); ++f)
      add(headers_.optimizers[f].records, first_state_ + narrow<std::uint32_t>(f));
  }

  // --- the run --------------------------------------------------------------------------------

  void note_run() {
    auto run = std::make_shared<RunState>();
    OptimizerStates const* states = folder_.universal             ? &headers_.settings
                                    : headers_.optimizers.empty() ? nullptr
                                                                  : &headers_.optimizers.front();
    run->universal = folder_.universal;
    run->version = model().version;
    run->steps = model().steps;
    run->samples = model().samples;
    run->ranks = std::max<Index>(model().data_parallel, 1);
    for (auto const& [second, first] : model().shared) run->second_names.push_back(second);
    run->model_file = checkpoint_.files.front();
    if (states != nullptr) {
      run->stage = folder_.split ? 3 : states->stage;
      if (run->version.empty()) run->version = states->version;
      run->scales_loss = states->scales_loss;
      run->optimizer.settings = states->settings;
      for (StateGroup const& group : states->groups)
        if (group.steps) run->optimizer.steps = group.steps;
      note_steps(*run);
    }
    if (!run->optimizer.settings.empty()) note_members(*run);
    checkpoint_.state.torch_optimizer = std::shared_ptr<TorchOptimizer const>(run, &run->optimizer);
    checkpoint_.state.deepspeed = std::move(run);
  }

  void note_steps(RunState& run) const {
    auto const note = [&run](OptimizerStates const& states) {
      for (StateGroup const& group : states.groups) {
        run.tensor_steps = run.tensor_steps || !group.step.empty();
        if (!run.optimizer.steps) run.optimizer.steps = group.steps;
      }
    };
    note(headers_.settings);
    for (OptimizerStates const& states : headers_.optimizers) note(states);
    bool const counts = std::ranges::any_of(
        parameters_, [](HeldParameter const& one) { return one.slots.contains("exp_avg_sq"); });
    if (counts && !run.optimizer.steps)
      checkpoint_.warnings.push_back(
          "no file states how many steps Adam has done: its state has no 'step' in the target");
  }

  /// `params` of a group counts flat groups: several where stage 3 cuts it into sub-groups.
  void note_members(RunState& run) const {
    pickle::Document const settings = settings_of(run.optimizer);
    auto const& groups = settings.at(settings.root).items;
    std::vector<bool> used(model().groups.size(), false);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      run.optimizer.members.emplace_back();
      std::vector<std::size_t> numbers{g};
      if (pickle::NodeId const params = settings.find(groups[g], "params");
          params != pickle::no_node && settings.at(params).kind == pickle::Kind::list &&
          !settings.at(params).items.empty()) {
        numbers.clear();
        for (pickle::NodeId const one : settings.at(params).items)
          numbers.push_back(static_cast<std::size_t>(settings.at(one).integer));
      }
      for (std::size_t const number : numbers) {
        if (number >= used.size() || used[number]) continue;
        used[number] = true;
        for (NamedShape const& one : model().groups[number])
          run.optimizer.members.back().push_back(one.name);
      }
    }
  }

  Folder const& folder_;
  Headers const& headers_;
  Checkpoint& checkpoint_;
  std::uint32_t first_state_;
  std::vector<HeldParameter> parameters_;
  std::map<std::string, std::size_t> numbers_;
};

}  // namespace

std::string state_name(std::string_view parameter, std::string_view slot) {
  return fmt::format("{}{}.{}", states_prefix, parameter, slot);
}

std::optional<StateName> parse_state_name(std::string_view name) {
  std::size_t const dot = name.rfind('.');
  if (!name.starts_with(states_prefix) || dot <= states_prefix.size()) return std::nullopt;
  return StateName{name.substr(states_prefix.size(), dot - states_prefix.size()),
                   name.substr(dot + 1)};
}

void fill_checkpoint(Folder const& folder, Headers const& headers, Checkpoint& checkpoint) {
  Table(folder, headers, checkpoint).fill();
}

}  // namespace reshard::deepspeed
