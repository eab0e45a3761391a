// Lists and makes links as Go's programs do, by netlink without the C library.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	links, err := net.Interfaces()
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	for _, link := range links {
		fmt.Println(link.Name)
	}
}
