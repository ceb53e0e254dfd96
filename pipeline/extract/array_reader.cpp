#include "pipeline/extract/array_reader.hpp"

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/base/hash/crc64.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/targets/target.hpp"
#include "core/plan/cells/part_plan.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/verify/digest.hpp"
#include "pipeline/verify/own_cells.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

void check_dtype(ChosenTensor const& tensor) {
  if (bits(tensor.dtype) % 8 != 0 || !in_safetensors(tensor.dtype))
    fail(ErrorKind::source,
         "'{}': {} cannot be written as an array: {}. Choose other tensors, or convert the "
         "checkpoint to a dtype of whole bytes first.",
         shown_name(tensor.name), name(tensor.dtype),
         in_safetensors(tensor.dtype) ? "its elements are smaller than a byte"
                                      : "safetensors has no such dtype");
}

}  // namespace

HeadedCheckpoint open_headers(CheckpointQuery const& query, Comm const& comm) {
  together_seeing(comm, [&] { check_checkpoint_folder(query.path); });
  return {query.path, open_query(query, {}, comm)};
}

CheckpointQuery by_stored_names(CheckpointQuery query) {
  query.map = "none";
  query.config.clear();
  query.prefix.clear();
  return query;
}

ArrayReader::ArrayReader(HeadedCheckpoint const& headed, CheckpointQuery const& query,
                         std::string again, Comm const& comm)
    : headed_(headed), again_(std::move(again)), records_(headed.checkpoint) {
  DigestQuery logical{query};
  manifest_ = follow_own_manifest(logical, checkpoint(), ignored_, comm);
  catalogue_ = open_logical(checkpoint(), logical, comm);
}

std::string const& ArrayReader::axis_name(DomainAxis const& axis) const {
  return catalogue_.model->axes()[axis.axis].name;
}

int ArrayReader::add_of(ChosenTensor const& tensor) const {
  return reshard::add_of(catalogue_.listing.adds, tensor.id);
}

/// Description of the arrays, for readers of the file.
Json ArrayReader::description(std::vector<ChosenTensor> const& chosen,
                              std::string const& at) const {
  Json tensors = Json::object();
  for (ChosenTensor const& tensor : chosen) {
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
  result.set("source", valid_utf8(headed_.path.string()));
  if (!at.empty()) result.set("at", at);
  return result.set("tensors", std::move(tensors));
}

ArrayFile ArrayReader::lay_out(ArrayChoice const& choice, std::filesystem::path const& output,
                               std::size_t threads) {
  ArrayFile arrays;
  arrays.memory_bytes = choice.memory_bytes;
  std::vector<AxisIndex> const at =
      choice.at.empty() ? std::vector<AxisIndex>() : parse_axis_indices(choice.at);
  Model& model = *catalogue_.model;
  arrays.tensors = choose_tensors(model, catalogue_.source, choice.patterns, at, choice.cuts);
  std::vector<TensorSpec> specs;
  for (ChosenTensor const& tensor : arrays.tensors) {
    check_dtype(tensor);
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  std::vector<std::pair<std::string, std::string>> const metadata{
      {"format", "pt"}, {"reshard", description(arrays.tensors, choice.at).dump()}};
  arrays.file = safetensors::plan_file(specs, metadata);
  Catalog target;
  target.files = {output.string()};
  target.tensors.resize(model.tensors().size());
  for (std::size_t i = 0; i < arrays.tensors.size(); ++i) {
    ChosenTensor const& tensor = arrays.tensors[i];
    target.add({0, arrays.file.offset_bytes[i], tensor.dtype, tensor.name}, tensor.pieces, false);
  }
  // The plan is of the chosen tensors alone; others are chosen later.
  std::vector<TensorId> others;
  for (std::size_t t = 0; t < model.tensors().size(); ++t)
    if (target.tensors[t].empty() && model.exists(TensorId(t))) others.push_back(TensorId(t));
  PlanLimits limits = limits_for(choice.memory_bytes);
  limits.threads = threads;
  for (TensorId const tensor : others) model.set_exists(tensor, false);
  auto const failed =
      capture([&] { arrays.plan = make_part_plan(model, catalogue_.source, target, limits); });
  for (TensorId const tensor : others) model.set_exists(tensor, true);
  if (failed) throw *failed;
  return arrays;
}

void ArrayReader::look(std::size_t number, FileStamp const& now) const {
  std::string const what = difference(checkpoint().stamps.taken[number], now);
  if (!what.empty())
    fail(ErrorKind::io, "{}: changed while it was read: {}. Nothing was written: {}.",
         checkpoint().files[number].string(), what, again_);
}

void ArrayReader::read(ArrayFile const& arrays, ExtentSink& sink, std::size_t threads,
                       RecordReading records, Comm const& comm) {
  {
    FileSet sources(checkpoint().files, FileSet::Access::read, FileSet::usual_open_limit(),
                    records_.io());
    std::set<std::size_t> opened;
    std::mutex opening;  // several threads open files
    sources.look_at_each([&](std::uint32_t number, File const& file) {
      std::lock_guard const lock(opening);
      opened.insert(number);
      look(number, file.stamp());
    });
    stream_own_cells({arrays.plan, catalogue_.source.views, arrays.memory_bytes, threads}, sources,
                     sink, comm);
    for (std::size_t const number : opened) look(number, stamp_of(checkpoint().files[number]));
  }
  std::vector<std::string> const faults = records_.take_faults(catalogue_.source, records);
  if (!faults.empty())
    fail(ErrorKind::source,
         "{}: bytes are not those that were saved: {}. Restore these files from a copy.",
         headed_.path.string(), listed(faults, 8));
}

void ArrayReader::compare_digests(ArrayFile const& arrays, std::span<std::byte const> bytes) const {
  std::unordered_map<std::string_view, TensorDigest const*> recorded;
  for (TensorDigest const& tensor : manifest_->tensors) recorded.emplace(tensor.name, &tensor);
  for (std::size_t i = 0; i < arrays.tensors.size(); ++i) {
    ChosenTensor const& tensor = arrays.tensors[i];
    auto const found = recorded.find(tensor.name);
    if (found == recorded.end()) continue;  // of a part of a tensor nothing is recorded
    TensorDigest const& digest = *found->second;
    if (digest.shape != tensor.shape || std::string_view(digest.dtype) != name(tensor.dtype) ||
        digest.add != add_of(tensor))
      continue;
    std::uint64_t const crc =
        crc64(bytes.subspan(arrays.file.offset_bytes[i],
                            safetensors::tensor_bytes({tensor.name, tensor.dtype, tensor.shape})));
    if (crc != digest.crc64)
      fail(ErrorKind::source,
           "{}: '{}': the bytes that were read have the digest {}, and {} has recorded {}. Restore "
           "the checkpoint from a copy; `reshard verify PATH` names the files.",
           headed_.path.string(), shown_name(tensor.name), hex64(crc), manifest_name,
           hex64(digest.crc64));
  }
}

}  // namespace reshard
