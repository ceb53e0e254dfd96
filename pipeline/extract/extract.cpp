#include "pipeline/extract/extract.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "core/base/activity.hpp"
#include "core/base/counted.hpp"
#include "core/base/file.hpp"
#include "core/base/paths.hpp"
#include "core/base/shown_name.hpp"
#include "core/containers/safetensors/header_frame.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/stamped_files.hpp"
#include "core/plan/part_plan.hpp"
#include "core/plan/round_sizes.hpp"
#include "core/transport/rank_threads.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/extract/chosen_tensors.hpp"
#include "pipeline/extract/single_file.hpp"
#include "pipeline/publication/shared_edges.hpp"
#include "pipeline/verify/digest.hpp"
#include "pipeline/verify/own_cells.hpp"
#include "stages/read/open_source.hpp"
#include "stages/write/extent_writer.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Axes of tensors by stored names are only numbered.
bool is_named(std::string const& axis) { return axis.front() < '0' || axis.front() > '9'; }

class Extraction {
 public:
  Extraction(ExtractQuery const& query, Comm const& comm) : query_(query), comm_(comm) {}

  ExtractReport run() {
    std::vector<AxisIndex> const at =
        query_.at.empty() ? std::vector<AxisIndex>() : parse_axis_indices(query_.at);
    together_seeing(comm_, [&] { check_checkpoint_folder(query_.path); });
    checkpoint_ = open_query(query_, {}, comm_);
    together(comm_, [&] {
      if (comm_.rank() == 0) check_place();
    });
    DigestQuery logical{query_};
    std::vector<std::string> ignored;  // what is not followed is explained by `digest`
    (void)follow_own_manifest(logical, checkpoint_, ignored, comm_);
    catalogue_ = open_logical(checkpoint_, logical, comm_);
    std::size_t const threads = rank_threads(comm_);
    together(comm_, [&] {
      chosen_ = choose_tensors(model(), catalogue_.source, query_.patterns, at);
      for (ChosenTensor const& tensor : chosen_) check_dtype(tensor);
      lay_out();
      plan(threads);
    });
    write(threads);
    return report();
  }

 private:
  Model& model() const { return *catalogue_.model; }
  std::string const& axis_name(DomainAxis const& axis) const {
    return model().axes()[axis.axis].name;
  }

  /// A loader may take any file in the folder for a part of the checkpoint.
  void check_place() const {
    std::error_code error;
    fs::path const place = resolved_path(query_.output, error);
    if (!error)
      for (fs::path const& taken : {query_.path, fs::path(checkpoint_.folder)})
        if (holds(resolved_path(taken, error), place))
          fail(ErrorKind::target,
               "{}: is inside the checkpoint {}, and could be taken for a part of it. Choose "
               "another path for -o.",
               query_.output.string(), taken.string());
  }

  static void check_dtype(ChosenTensor const& tensor) {
    if (bits(tensor.dtype) % 8 != 0 || !in_safetensors(tensor.dtype))
      fail(ErrorKind::source,
           "'{}': {} cannot be written as an array: {}. Choose other tensors, or convert the "
           "checkpoint to a dtype of whole bytes first.",
           shown_name(tensor.name), name(tensor.dtype),
           in_safetensors(tensor.dtype) ? "its elements are smaller than a byte"
                                        : "safetensors has no such dtype");
  }

  /// Description of the arrays, for readers of the file.
  Json description() const {
    Json tensors = Json::object();
    for (ChosenTensor const& tensor : chosen_) {
      Json one = Json::object();
      Json axes = Json::array();
      for (DomainAxis const& axis : tensor.axes) axes.push(axis_name(axis));
      one.set("axes", std::move(axes));
      for (DomainAxis const& axis : tensor.axes) {
        if (axis.runs.size() == 1 && axis.runs.front().begin == 0) continue;
        Json runs = Json::array();
        for (Run const& run : axis.runs) runs.push(Json::array().push(run.begin).push(run.end));
        one.set("indices", Json::object().set(axis_name(axis), std::move(runs)));
      }
      if (!tensor.part_of.empty()) one.set("part_of", tensor.part_of);
      if (int const add = add_of(tensor); add != 0) one.set("add", add);
      tensors.set(tensor.name, std::move(one));
    }
    Json result;
    result.set("source", valid_utf8(query_.path.string()));
    if (!query_.at.empty()) result.set("at", query_.at);
    return result.set("tensors", std::move(tensors));
  }

  int add_of(ChosenTensor const& tensor) const {
    std::size_t const t = index(tensor.id);
    return t < catalogue_.adds.size() ? catalogue_.adds[t] : 0;
  }

  void lay_out() {
    std::vector<TensorSpec> specs;
    for (ChosenTensor const& tensor : chosen_)
      specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    std::vector<std::pair<std::string, std::string>> const metadata{
        {"format", "pt"}, {"reshard", description().dump()}};
    file_ = safetensors::plan_file(specs, metadata);
    target_.files = {query_.output.string()};
    target_.tensors.resize(model().tensors().size());
    for (std::size_t i = 0; i < chosen_.size(); ++i)
      target_.add({0, file_.offset_bytes[i], chosen_[i].dtype, chosen_[i].name}, chosen_[i].pieces,
                  false);
  }

  /// Of the chosen tensors alone.
  void plan(std::size_t threads) {
    for (std::size_t t = 0; t < model().tensors().size(); ++t)
      if (target_.tensors[t].empty()) model().set_exists(TensorId(t), false);
    PlanLimits limits = limits_for(query_.memory_bytes);
    limits.threads = threads;
    plan_ = make_part_plan(model(), catalogue_.source, target_, limits);
  }

  void look(std::size_t number, FileStamp const& now) const {
    std::string const what = difference(checkpoint_.stamps[number], now);
    if (!what.empty())
      fail(ErrorKind::io,
           "{}: changed while it was read: {}. Nothing was written: run again when no program "
           "writes the checkpoint.",
           checkpoint_.files[number].string(), what);
  }

  void write(std::size_t threads) {
    begin_phase("writing the tensors");
    SingleFile out({query_.output, file_.size_bytes,
                    std::make_shared<safetensors::HeaderFrame const>(file_.header)},
                   query_.existing, comm_);
    EdgeBytes edges = find_edges(plan_, comm_);
    FileSet sources(checkpoint_.files, FileSet::Access::read);
    std::set<std::size_t> opened;
    std::mutex opening;  // several threads open files
    sources.look_at_each([&](std::uint32_t number, File const& file) {
      std::lock_guard const lock(opening);
      opened.insert(number);
      look(number, file.stamp());
    });
    FileSet written({out.staging()}, FileSet::Access::write);
    WriteObserver const unobserved;
    together(comm_, [&] {
      ExtentWriter writer(written, unobserved, &edges, threads);
      stream_own_cells({plan_, catalogue_.source.views, query_.memory_bytes, threads}, sources,
                       writer, comm_);
      written.sync(0);
      written.close();
      for (std::size_t const number : opened) look(number, stamp_of(checkpoint_.files[number]));
    });
    auto const all = [](std::uint32_t) { return true; };
    out.publish(gathered_edges(&edges, 1, all, comm_).front());
  }

  ExtractReport report() const {
    ExtractReport result;
    for (std::string const* note : {&checkpoint_.newer_saves, &catalogue_.prefix_note})
      if (!note->empty()) result.notes.push_back(*note);
    Json rows = Json::array();
    std::uint64_t bytes = 0;
    bool parts = false;
    for (ChosenTensor const& tensor : chosen_) {
      std::string axes;
      for (DomainAxis const& axis : tensor.axes)
        if (is_named(axis_name(axis)))
          axes += fmt::format("{}{}", axes.empty() ? "  " : " · ", axis_name(axis));
      int const add = add_of(tensor);
      result.text += fmt::format("{:<8}  [{}]  {}{}{}\n", name(tensor.dtype),
                                 fmt::join(tensor.shape, ", "), shown_name(tensor.name), axes,
                                 add == 0 ? "" : fmt::format("  (stored: the value {:+})", add));
      Json shape = Json::array();
      for (Index const size : tensor.shape) shape.push(size);
      Json row;
      row.set("name", tensor.name).set("dtype", name(tensor.dtype)).set("shape", std::move(shape));
      rows.push(std::move(row));
      bytes += safetensors::tensor_bytes({tensor.name, tensor.dtype, tensor.shape});
      parts = parts || !tensor.part_of.empty();
    }
    if (parts) result.text += "quantised weights are their parts, as they are stored\n";
    result.text += fmt::format("{}: {}, {}\n", query_.output.string(),
                               counted(chosen_.size(), "tensor"), human_bytes(bytes));
    result.json.set("path", query_.path.string())
        .set("format", checkpoint_.format->name())
        .set("map", catalogue_.map_name)
        .set("output", query_.output.string())
        .set("bytes", bytes)
        .set("tensors", std::move(rows));
    return result;
  }

  ExtractQuery const& query_;
  Comm const& comm_;
  Checkpoint checkpoint_;
  JobPlan catalogue_;
  std::vector<ChosenTensor> chosen_;
  safetensors::FilePlan file_;
  Catalog target_;
  Plan plan_;
};

}  // namespace

ExtractReport extract_tensors(ExtractQuery const& query, Comm const& comm) {
  return Extraction(query, comm).run();
}

}  // namespace reshard
