#include "pipeline/verify/suspects.hpp"

#include <algorithm>

#include "core/base/integers.hpp"
#include "core/base/shown_name.hpp"
#include "core/mapping/adapter.hpp"
#include "core/plan/digest_work.hpp"
#include "core/plan/round_sizes.hpp"
#include "core/transport/rank_threads.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/target/target_check.hpp"
#include "pipeline/verify/digest.hpp"
#include "pipeline/verify/own_cells.hpp"
#include "stages/read/open_source.hpp"
#include "stages/verify/suspect_rules.hpp"

namespace reshard {
namespace {

/// Takes the place of the writer: file t would hold the row-major bytes of tensor t.
class SurveySink : public ExtentSink {
 public:
  explicit SurveySink(ValueSurvey& survey) : survey_(survey) {}
  void write(std::span<Extent const> extents, std::byte* staging) override {
    std::vector<ValueSurvey::Stretch> stretches;
    for (Extent const& extent : extents) {
      stretches.push_back({extent.file, extent.offset_bytes, {staging + extent.at, extent.bytes}});
      stats_.bytes += extent.bytes;
    }
    ++stats_.calls;
    survey_.take(stretches);
  }
  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return "survey"; }

 private:
  ValueSurvey& survey_;
  WriteStats stats_;
};

/// The indices along an axis that a tensor has, in order.
std::vector<Index> indices_of(DomainAxis const& axis) {
  std::vector<Index> indices;
  for (Run const& run : axis.runs)
    for (Index i = run.begin; i < run.end; ++i) indices.push_back(i);
  return indices;
}

/// How many of a tensor's first axes number slices: layers, then experts.
std::size_t slice_axes(Model const& model, TensorId tensor) {
  LogicalTensor const& logical = model.tensor(tensor);
  std::size_t count = model.layer_axis(tensor) ? 1 : 0;
  if (count < logical.axes.size() && model.axes()[logical.axes[count].axis].name == "expert")
    ++count;
  return count;
}

/// "layer 3, expert 5", for each combination.
std::vector<std::string> slice_names(Model const& model, TensorId tensor, std::size_t axes) {
  std::vector<DomainAxis> const domain = model.meant_domain(model.tensor(tensor));
  std::vector<std::string> names{""};
  for (std::size_t d = 0; d < axes; ++d) {
    std::vector<std::string> longer;
    for (std::string const& name : names)
      for (Index const i : indices_of(domain[d]))
        longer.push_back(fmt::format("{}{}{} {}", name, name.empty() ? "" : ", ",
                                     model.axes()[domain[d].axis].name, i));
    names = std::move(longer);
  }
  return names;
}

class SuspectSearch {
 public:
  SuspectSearch(SuspectQuery const& query, Comm const& comm) : query_(query), comm_(comm) {}

  SuspectReport run() {
    together_seeing(comm_, [&] { check_checkpoint_folder(query_.path); });
    checkpoint_ = open_source(query_.path, FormatId::automatic, {}, comm_);
    DigestQuery logical;
    logical.map = query_.map;
    logical.config = query_.config;
    logical.map_folders = query_.map_folders;
    catalogue_ = open_logical(checkpoint_, logical, comm_);
    std::size_t const threads = rank_threads(comm_);
    together(comm_, [&] {
      lay_out();
      plan(threads);
    });
    ValueSurvey survey(surveyed_, threads);
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      tensors_[t].first_slice = survey.first_slice(narrow<std::uint32_t>(t));
    FileSet files(checkpoint_.files, FileSet::Access::read);
    together(comm_, [&] { read(files, survey, threads); });
    return report(survey.merged(comm_));
  }

 private:
  Model const& model() const { return *catalogue_.model; }

  /// A file for each tensor, which holds its row-major bytes.
  void lay_out() {
    target_.tensors.resize(model().tensors().size());
    for (std::size_t t = 0; t < model().tensors().size(); ++t) {
      auto const id = TensorId(t);
      TensorPieces const& stored = catalogue_.source.tensors[t];
      if (!model().exists(id) || model().volume(model().tensor(id)) == 0 || stored.blobs.empty())
        continue;
      DType const dtype = catalogue_.source.blobs[stored.blobs.front()].dtype;
      if (bits(dtype) % 8 != 0)
        fail(
            ErrorKind::source,
            "'{}': {} has elements smaller than a byte, which cannot be looked at by themselves. Name "
            "the checkpoint that it was quantised from.",
            model().tensor(id).name, name(dtype));
      add_tensor(id, dtype);
    }
  }

  void add_tensor(TensorId id, DType dtype) {
    LogicalTensor const& logical = model().tensor(id);
    std::size_t const axes = slice_axes(model(), id);
    SuspectTensor tensor;
    tensor.name = logical.name;
    tensor.dtype = dtype;
    tensor.slices = slice_names(model(), id, axes);
    std::vector<Index> const shape = logical_shape(model(), id);
    std::uint64_t elements = 1;
    int long_axes = 0;
    for (std::size_t d = axes; d < shape.size(); ++d) {
      elements *= narrow<std::uint64_t>(shape[d]);
      if (shape[d] > 1) ++long_axes;
    }
    tensor.matrix = long_axes >= 2;
    tensor.state = logical.slot != SlotId::weight;
    tensor.adapter = adapter_of(model(), id).has_value();
    tensor.scale = logical.name.find("scale") != std::string::npos && !model().schemes().empty();
    int const vocab = model().axes().find("vocab");
    tensor.tied = std::ranges::any_of(logical.axes, [&](LogicalAxis const& axis) {
      return static_cast<int>(axis.axis) == vocab;
    });
    surveyed_.push_back(
        {dtype, elements * narrow<std::uint64_t>(bits(dtype) / 8), tensor.slices.size()});
    auto const file = narrow<std::uint32_t>(tensors_.size());
    target_.files.push_back(logical.name);
    target_.add({file, 0, dtype, logical.name}, logical_pieces(model(), id), false);
    tensors_.push_back(std::move(tensor));
  }

  void plan(std::size_t threads) {
    PlanLimits limits = limits_for(query_.memory_bytes);
    limits.digests = false;
    limits.threads = threads;
    plan_ = make_plan(model(), catalogue_.source, target_, limits);
  }

  void read(FileSet& files, ValueSurvey& survey, std::size_t threads) {
    SurveySink sink(survey);
    stream_own_cells({plan_, catalogue_.source.views, query_.memory_bytes, threads}, files, sink,
                     comm_);
  }

  SuspectReport report(std::vector<SliceValues> const& slices) const {
    std::vector<Suspect> const suspects = suspects_in(tensors_, slices);
    SuspectReport result;
    result.sound = suspects.empty();
    Json rows = Json::array();
    std::optional<SuspectKind> before;
    for (Suspect const& one : suspects) {
      rows.push(Json()
                    .set("kind", word_of(one.kind))
                    .set("tensor", one.tensor)
                    .set("slice", one.slice)
                    .set("found", one.found)
                    .set("count", one.count));
      if (rows.items()->size() > query_.row_limit) continue;
      if (before != one.kind)
        result.text += fmt::format("{}. {}\n", word_of(one.kind), cause_of(one.kind));
      before = one.kind;
      result.text += fmt::format("  {}{}{}: {}\n", shown_name(one.tensor),
                                 one.slice.empty() ? "" : ", ", one.slice, one.found);
    }
    if (suspects.size() > query_.row_limit)
      result.text += fmt::format("  and {} more: see --json\n", suspects.size() - query_.row_limit);
    result.text += fmt::format("{} suspects in {} tensors with {} parts\n", suspects.size(),
                               tensors_.size(), slices.size());
    result.json.set("path", query_.path.string())
        .set("format", checkpoint_.format->name())
        .set("map", catalogue_.map_name)
        .set("tensors", tensors_.size())
        .set("parts", slices.size())
        .set("suspects", std::move(rows));
    return result;
  }

  SuspectQuery const& query_;
  Comm const& comm_;
  Checkpoint checkpoint_;
  JobPlan catalogue_;
  Catalog target_;
  std::vector<SuspectTensor> tensors_;
  std::vector<SurveyedTensor> surveyed_;
  Plan plan_;
};

}  // namespace

SuspectReport find_suspects(SuspectQuery const& query, Comm const& comm) {
  return SuspectSearch(query, comm).run();
}

}  // namespace reshard
