#include "core/formats/dcp/grid_files.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/targets/target_parts.hpp"

namespace reshard::dcp {
namespace {

/// A plain target whose keys come from a map.
class MappedKeys {
 public:
  MappedKeys(MappedTarget const& job, TargetNames const& names, TargetDraft& draft)
      : job_(job),
        names_(names),
        draft_(draft),
        grid_(grid_of(job.request.options.dcp)),
        side_(job.model, names.map, options()),
        stored_(side_.names(nullptr)) {}

  void run() {
    draft_.target_adds = side_.adds();
    add_model_files();
    std::vector<GridTensor> const tensors = grid_tensors();
    warn_of_idle_rules(grid_, tensors, draft_.warnings);
    ChunkGrid grid = grid_;
    if (grid.kind == ChunkGrid::Kind::source) grid.kind = ChunkGrid::Kind::whole;
    std::vector<std::vector<TargetBox>> boxes = boxes_in_files(grid, tensors);
    DcpTarget target(draft_, {});
    std::vector<std::pair<std::string, Path>> paths;
    for (auto const& [key, bytes] : names_.objects) {
      target.add_object(job_.request.options.dcp.prefix + key, 0, bytes);
      paths.emplace_back(job_.request.options.dcp.prefix + key,
                         Path{job_.request.options.dcp.prefix + key});
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (TargetBox& box : boxes[t])
        box.pieces = side_.box_pieces(stored_[t], box.box.begin, box.box.end);
      target.add_tensor(tensors[t].key, tensors[t].dtype, tensors[t].shape, boxes[t],
                        stored_[t].copy);
      paths.emplace_back(tensors[t].key, Path{tensors[t].key});
    }
    draft_.opaque = target.finish(std::move(paths));
  }

 private:
  SideOptions options() const {
    SideOptions options;
    options.options = names_.options;
    return options;
  }

  std::vector<GridTensor> grid_tensors() const {
    TargetParts const parts{&job_.model, &side_, job_.dtypes, &job_.request};
    std::vector<GridTensor> result;
    for (StoredName const& name : stored_) {
      std::string const key = names_.key ? names_.key(name.name) : name.name;
      result.push_back(
          {job_.request.options.dcp.prefix + key, stored_dtype(parts, name), side_.shape(name)});
    }
    return result;
  }

  /// Adds config.json and the files next to it: loaders of the target need the model's sizes.
  void add_model_files() {
    if (job_.read.facts.reference) return add_carried(draft_, job_.read.facts.reference);
    if (job_.read.facts.config_text.empty()) return;
    draft_.texts.push_back(
        {std::filesystem::path(huggingface::carried_name) / huggingface::config_name,
         job_.read.facts.config_text,
         false,
         {}});
  }

  MappedTarget const& job_;
  TargetNames const& names_;
  TargetDraft& draft_;
  ChunkGrid grid_;
  Side side_;
  std::vector<StoredName> stored_;
};

}  // namespace

void lay_out_mapped(MappedTarget const& job, TargetDraft& draft) {
  bool const shares = job.source.storage == Storage::shares;
  if (!job.read.names.target_names)
    fail(ErrorKind::usage,
         "[target] format = \"dcp\": a plain DCP target keeps the names of the source{}. Set "
         "target.map to a map that names the tensors, or {}.",
         shares             ? ", and names in a Megatron source depend on the rank"
         : job.read.changed ? ", and a changed model has others"
                            : "; model.map gives them others only on the way to target.map",
         shares || job.read.changed ? "choose torch_dist or huggingface"
                                    : "leave out model.map to keep the names");
  MappedKeys(job, *job.read.names.target_names, draft).run();
}

}  // namespace reshard::dcp
