#include "pipeline/view/view.hpp"

#include <map>

#include "core/base/file.hpp"
#include "core/base/paths.hpp"
#include "core/base/shown_name.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/target_request.hpp"
#include "pipeline/version.hpp"
#include "pipeline/view/view_model.hpp"
#include "pipeline/view/view_timeline.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Format = TargetRequest::Format;

std::string inside(fs::path const& file, fs::path const& folder) {
  fs::path const relative = file.lexically_relative(folder);
  return relative.empty() || relative == "." || *relative.begin() == ".." ? file.filename().string()
                                                                          : relative.string();
}

void set_mesh(ViewSide& side, MeshSizes const& sizes) {
  side.mesh = {{"tp", sizes.tp}, {"pp", sizes.pp}, {"ep", sizes.ep}};
  int const etp = sizes.etp == 0 ? sizes.tp : sizes.etp;
  side.layout = fmt::format("tp {} · pp {} · ep {}", sizes.tp, sizes.pp, sizes.ep);
  if (sizes.vpp > 1) side.layout += fmt::format(" · vpp {}", sizes.vpp);
  if (etp != sizes.tp) side.layout += fmt::format(" · etp {}", etp);
}

void place(ViewOwner& owner, megatron::ShardPlace const& at) {
  owner.at = {at.tp, at.pp, at.ep};
  owner.label = fmt::format("tp{} pp{} ep{}", at.tp, at.pp, at.ep);
}

ViewSide side_of(SourceCheckpoint const& source, fs::path const& path, std::string_view role) {
  ViewSide side;
  side.role = role;
  side.path = path.string();
  side.format = format_of(source);
  side.layout =
      fmt::format("{} {}", source.files.size(), source.files.size() == 1 ? "file" : "files");
  if (source.megatron) set_mesh(side, source.megatron->classification.sizes);
  for (std::size_t f = 0; f < source.files.size(); ++f) {
    ViewOwner owner;
    owner.file = inside(source.files[f], path);
    owner.label = source.files[f].filename().string();
    if (source.megatron) place(owner, source.megatron->classification.places[f]);
    side.owners.push_back(std::move(owner));
  }
  return side;
}

/// Which place each folder of a Megatron target has.
std::map<std::string, megatron::ShardPlace> places_by_name(TargetRequest const& request) {
  MeshSizes const& sizes = request.mesh;
  std::map<std::string, megatron::ShardPlace> places;
  for (int pp = 0; pp < sizes.pp; ++pp)
    for (int ep = 0; ep < sizes.ep; ++ep)
      for (int tp = 0; tp < sizes.tp; ++tp)
        places[format_shard_name({tp, pp, ep}, sizes, request.style)] = {tp, pp, ep};
  return places;
}

ViewSide target_side(JobSpec const& job, TargetRequest const& request, JobPlan const& plan) {
  ViewSide side;
  side.role = "target";
  side.path = job.target.path;
  side.format = name(job.target.format);
  side.layout = fmt::format("{} {}", plan.files.size(), plan.files.size() == 1 ? "file" : "files");
  std::map<std::string, megatron::ShardPlace> places;
  if (request.format == Format::megatron) {
    set_mesh(side, request.mesh);
    places = places_by_name(request);
  }
  for (TargetFile const& file : plan.files) {
    ViewOwner owner;
    owner.file = file.path.string();
    owner.label = file.path.filename().string();
    if (auto const found = places.find(file.path.parent_path().filename().string());
        found != places.end())
      place(owner, found->second);
    side.owners.push_back(std::move(owner));
  }
  return side;
}

std::string last_name(fs::path const& path) { return normal_path(path).filename().string(); }

LayoutView checkpoint_view(ViewQuery const& query, Comm const& comm) {
  together_seeing(comm, [&] { check_checkpoint_folder(query.path); });
  SourceCheckpoint const source = open_source(query.path, SourceFormat::found, {}, comm);
  JobPlan plan;
  together_seeing(comm, [&] {
    plan = catalogue(source, request_without_target(query.map, query.config, query.map_folders));
  });
  LayoutView view;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    view.title = last_name(query.path);
    view.map = plan.map_name;
    view.stored_names = plan.stored_names;
    view.warnings = plan.warnings;
    view.sides.push_back(side_of(source, query.path, "checkpoint"));
    add_tensors(view, *plan.model, {&plan.source});
  });
  return view;
}

LayoutView job_view(ViewQuery const& query, Comm const& comm) {
  JobSpec const& job = *query.job;
  SourceCheckpoint source =
      open_source(job.source.path, source_format(job.source.format), {}, comm);
  TargetRequest const request = target_request(job, query.map_folders);
  PlanLimits limits;
  limits.digests = false;
  JobPlan plan;
  together_seeing(comm, [&] {
    check_source_format(job, source);
    plan = make_job_plan(source, request, limits);
  });
  LayoutView view;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    view.title = fmt::format("{} → {}", last_name(job.source.path), last_name(job.target.path));
    view.map = plan.map_name;
    view.stored_names = plan.stored_names;
    view.warnings = plan.warnings;
    view.sides.push_back(side_of(source, job.source.path, "source"));
    view.sides.push_back(target_side(job, request, plan));
    add_tensors(view, *plan.model, {&plan.source, &plan.target});
    view.flows = flows_of(plan.plan, plan.source);
  });
  return view;
}

/// What a page must not be written into.
std::vector<fs::path> taken_places(ViewQuery const& query) {
  if (query.job) {
    std::vector<fs::path> places = places_of(query.job->target.path);
    places.emplace_back(query.job->source.path);
    return places;
  }
  if (!query.trace.empty()) return {query.trace};
  return {query.path};
}

std::string document(ViewQuery const& query, Comm const& comm, std::string& title,
                     std::vector<std::string>& warnings) {
  std::string const made_by = "reshard " + version_number();
  std::string json;
  if (!query.trace.empty()) {
    title = "Timeline of " + query.trace.filename().string();
    together(comm, [&] {
      if (comm.rank() != 0) return;
      Timeline timeline = read_timeline(query.trace, made_by);
      json = std::move(timeline.json);
      if (!timeline.complete)
        warnings.push_back(fmt::format(
            "{}: the trace is incomplete: the file is cut short. What is there is shown.",
            query.trace.string()));
    });
    return json;
  }
  LayoutView view = query.job ? job_view(query, comm) : checkpoint_view(query, comm);
  view.made_by = made_by;
  title = view.title + " · layout";
  return comm.rank() == 0 ? layout_json(view) : std::string();
}

}  // namespace

ViewOutput view(ViewQuery const& query, Comm const& comm) {
  std::optional<PageFile> file;
  bool const to_file = query.output && *query.output != "-";
  together(comm, [&] {
    if (comm.rank() == 0 && to_file) file.emplace(*query.output, taken_places(query));
  });
  std::string title;
  ViewOutput out;
  std::string const json = document(query, comm, title, out.warnings);
  together(comm, [&] {
    if (comm.rank() != 0) return;
    if (query.json) out.text = json + "\n";
    if (!query.output) return;
    std::string const html = page_html(query.trace.empty() ? PageKind::layout : PageKind::timeline,
                                       title, json, query.data);
    if (!to_file) out.text = html;
    if (!file) return;
    file->write(html);
    if (!query.json)
      out.text = fmt::format("{}: {}. Open it in a browser.\n", shown_name(query.output->string()),
                             human_bytes(html.size()));
  });
  return out;
}

}  // namespace reshard
