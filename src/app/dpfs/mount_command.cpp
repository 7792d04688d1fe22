// `dpfs mount` and the form in which mount(8) calls it.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/command_line.hpp"
#include "app/commands.hpp"
#include "app/dpfs/commands.hpp"
#include "app/dpfs/mount_plan.hpp"
#include "app/dpfs/serve.hpp"

namespace farhaul::app::dpfs {

namespace {

constexpr const char* kExamples = R"(Examples:
  dpfs mount mirror:/srv/data /mnt
  dpfs mount mirror:/srv/data /mnt -o ro,allow_other
  dpfs mount memory:size=4GiB /mnt --foreground
  dpfs mount null: /mnt -o io_uring=on,queue_depth=32
  mount -t fuse.dpfs mirror:/srv/data /mnt
In /etc/fstab:
  mirror:/srv/data  /mnt  fuse.dpfs  defaults,_netdev  0  0)";

struct Arguments {
    std::string source;
    std::string mountpoint;
    std::vector<std::string> words;
    bool foreground = false;
    bool sloppy = false;
    bool fake = false;
};

int mount(const Arguments& arguments, const char* name) {
    auto plan = plan_mount(arguments.source, arguments.mountpoint, arguments.words, arguments.sloppy);
    if (!plan) {
        fmt::print(stderr, "{}: {}\n", name, plan.error().message);
        return kExitUsage;
    }
    if (arguments.fake) return kExitOk;
    return serve(std::move(*plan), arguments.foreground);
}

void add_common(CLI::App& command, Arguments& arguments) {
    command.add_option("source", arguments.source, "null:, memory:[size=SIZE] or mirror:DIR")
        ->type_name("SOURCE")
        ->required();
    command.add_option("mountpoint", arguments.mountpoint, "Where the files appear: an existing directory")
        ->type_name("MOUNTPOINT")
        ->required();
    command.add_option("-o,--options", arguments.words, "Options with commas between; may be repeated")
        ->type_name("OPT[,OPT=VALUE]...")
        ->allow_extra_args(false);
}

}  // namespace

void add_mount_command(CLI::App& app, int& exit_code) {
    auto* command = app.add_subcommand("mount", "Serve a file system on a directory of this host");
    auto arguments = std::make_shared<Arguments>();
    add_common(*command, *arguments);
    command->add_flag("-f,--foreground", arguments->foreground, "Do not go into the background; log to stderr");
    command->footer(describe_mount_words() + "\n" + kExamples);
    command->callback([arguments, &exit_code] { exit_code = mount(*arguments, "dpfs mount"); });
}

int run_mount_helper(const char* name, int argc, char** argv) {
    CLI::App app{"Mount helper of dpfs, to be called by mount(8)", name};
    app.set_version_flag("-V,--version", "dpfs " FARHAUL_VERSION);
    Arguments arguments;
    std::string ignored;
    bool read_only = false;
    bool read_write = false;
    bool quiet = false;
    add_common(app, arguments);
    app.add_flag("-s", arguments.sloppy, "Ignore unknown options");
    app.add_flag("-f", arguments.fake, "Check the command line, and do not mount");
    app.add_flag("-n,-v", quiet, "No effect");
    app.add_flag("-r", read_only, "As -o ro");
    app.add_flag("-w", read_write, "As -o rw");
    app.add_option("-N", ignored, "No effect: mount(8) has entered the namespace")->type_name("NAMESPACE");
    app.add_option("-t", ignored, "No effect")->type_name("TYPE");
    int exit_code = kExitOk;
    app.callback([&] {
        if (read_only) arguments.words.emplace_back("ro");
        if (read_write) arguments.words.emplace_back("rw");
        exit_code = mount(arguments, name);
    });
    return parse_and_run(app, argc, argv, exit_code);
}

}  // namespace farhaul::app::dpfs
